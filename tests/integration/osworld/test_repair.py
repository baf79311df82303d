"""The repair of `<` in the runtime `canonical` against OSWorld's own function, from the published package."""

import json
import subprocess

from rollbook.desktop.runtimes import repair_less_than
from rollbook.osworld.environment import EvaluatorEnv

QUOTES = ["'", '"']
TEXTS = ["<", "a<b", "<<", "a<", "<a", "ab", "", "é<", "中", "\\u003c", "\\u003C", "\\x3c", "\\n<", "\\t\\'<",
         'say "<"', "it's <", "\\d<", "\\", "\\x<", "a\n<b", "🙂<", "<!--", "x < y > z", "\0<", "a\ud800<"]  # fmt: skip
FORMS = [
    "pyautogui.press({q}{t}{q})",
    "pyautogui.typewrite({q}{t}{q})",
    "if True:\n    pyautogui.typewrite({q}{t}{q}); pyautogui.press({q}{t}{q})\n",
    "pyautogui.typewrite({q}{t}{q}, interval=0.1)",
    "pyautogui.typewrite( {q}{t}{q} )",
    "pyautogui.write({q}{t}{q})",
    "pyautogui.hotkey('ctrl', {q}{t}{q})",
    "print('pyautogui.press({q}{t}{q})')",
    "pyautogui.typewrite({q}{t}{q}); pyautogui.typewrite({q}{t}{q})",
]
ACTIONS = [form.format(q=quote, t=text) for form in FORMS for quote in QUOTES for text in TEXTS]
ACTIONS += ["pyautogui.press('<\")", "pyautogui.typewrite(text)", "pyautogui.typewrite(['<'])", "no < python (", ""]

NAME = "_fix_pyautogui_less_than_bug"
PROGRAM = f"""
import ast, importlib.util, json, pathlib, re, sys, warnings
warnings.simplefilter("ignore")
package = pathlib.Path(importlib.util.find_spec("desktop_env").submodule_search_locations[0])
module = ast.parse((package / "desktop_env.py").read_text())  # importing it takes packages that are not needed here
module.body = [node for node in module.body if getattr(node, "name", "") == "{NAME}"]
names = {{"re": re}}
exec(compile(module, "desktop_env.py", "exec"), names)
def repaired(action):
    try:
        return names["{NAME}"](action)
    except UnicodeEncodeError:
        return None
print(json.dumps([repaired(action) for action in json.load(sys.stdin)]))
"""


def test_the_repair_is_osworlds(env: EvaluatorEnv) -> None:
    command = [str(env.python), "-I", "-B", "-c", PROGRAM]
    done = subprocess.run(command, input=json.dumps(ACTIONS), capture_output=True, text=True, check=True)
    of_osworld = json.loads(done.stdout.splitlines()[-1])
    assert len(of_osworld) == len(ACTIONS) > 400
    different = [
        (action, repair_less_than(action), theirs)
        for action, theirs in zip(ACTIONS, of_osworld, strict=True)
        if theirs is not None and repair_less_than(action) != theirs
    ]
    assert different == []
    raised = [action for action, theirs in zip(ACTIONS, of_osworld, strict=True) if theirs is None]
    assert all("\ud800" in action for action in raised), "what cannot be sent at all"
