"""Applications and programs that a task needs on its desktop, read off its document; and what an image has of them.

A task whose application is missing would score 0 for every policy, and the 0 would look valid: OSWorld's setup only
logs a failed launch.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

APPLICATIONS: Mapping[str, tuple[str, ...]] = {
    "chrome": ("google-chrome",),
    "gimp": ("gimp",),
    "libreoffice": ("libreoffice", "soffice"),
    "libreoffice_calc": ("localc",),
    "libreoffice_impress": ("loimpress",),
    "libreoffice_writer": ("lowriter",),
    "thunderbird": ("thunderbird",),
    "vlc": ("vlc",),
    "vscode": ("code",),
    "file_manager": ("nautilus", "pcmanfm", "thunar", "nemo", "dolphin", "caja"),
    "image_viewer": ("eog", "ristretto", "gpicview", "feh", "gwenview", "shotwell"),
    "pdf_viewer": ("evince", "okular", "atril", "xpdf", "zathura", "google-chrome"),
    "terminal": ("gnome-terminal", "xterm", "konsole", "xfce4-terminal"),
    "text_editor": ("gedit", "gnome-text-editor", "mousepad", "kate", "xed", "code"),
    "video_player": ("vlc", "totem", "mpv"),
}
"""Programs of which an image needs one to have the application, by OSWorld's name of it."""

_RELATED = {
    "browser": "chrome",
    "calc": "libreoffice_calc",
    "image": "image_viewer",
    "impress": "libreoffice_impress",
    "pdf": "pdf_viewer",
    "ubuntu_media_player": "video_player",
    "vs_code": "vscode",
    "writer": "libreoffice_writer",
}
"""Other spellings in OSWorld's `related_apps`."""

_OPENS = {
    "libreoffice_calc": ("xlsx", "xls", "ods", "csv"),
    "libreoffice_impress": ("pptx", "ppt", "odp"),
    "libreoffice_writer": ("docx", "doc", "odt", "rtf"),
    "image_viewer": ("png", "jpg", "jpeg", "webp", "gif", "bmp", "svg"),
    "pdf_viewer": ("pdf",),
    "text_editor": ("txt", "md", "json", "py", "sh", "xml", "log"),
    "video_player": ("mp4", "mkv", "avi", "webm", "mp3", "wav"),
    "gimp": ("xcf",),
    "file_manager": ("",),
}
"""Suffixes of the files that the setup type `open` hands to an application."""

_SETUP = dict.fromkeys(("chrome_open_tabs", "chrome_close_tabs", "update_browse_history", "login"), "chrome")

_GETTERS = {
    **dict.fromkeys(
        (
            "active_tab_html_parse", "active_tab_info", "active_tab_url_parse", "active_url_from_accessTree",
            "bookmarks", "chrome_appearance_mode_ui", "chrome_color_scheme", "chrome_font_size", "chrome_language",
            "chrome_saved_address", "cookie_data", "data_delete_automacally", "default_search_engine",
            "enable_do_not_track", "enable_enhanced_safety_browsing", "enable_safe_browsing", "enabled_experiments",
            "extensions_installed_from_shop", "find_installed_extension_name", "find_unpacked_extension_path",
            "gotoRecreationPage_and_get_html_content", "history", "info_from_website", "new_startup_page",
            "number_of_search_results", "open_tabs_info", "page_info", "pdf_from_url", "profile_name", "url_dashPart",
        ),
        "chrome",
    ),
    **dict.fromkeys(("vlc_config", "vlc_playing_info"), "vlc"),
    "gimp_config_file": "gimp",
    "vscode_config": "vscode",
}  # fmt: skip
"""Getters of `desktop_env` that ask an application or read what it keeps."""

_SHELL_WORDS = frozenset(
    {
        "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "in", "function",
        "select", "time", "[", "[[", "]]", "{", "}", "!", ".", ":", "alias", "bg", "break", "cd", "command",
        "continue", "declare", "echo", "eval", "exec", "exit", "export", "false", "fg", "getopts", "hash", "help",
        "history", "jobs", "kill", "let", "local", "popd", "printf", "pushd", "pwd", "read", "readonly", "return",
        "set", "shift", "shopt", "source", "test", "times", "trap", "true", "type", "typeset", "ulimit", "umask",
        "unalias", "unset", "wait"
    }
)  # fmt: skip
_PREFIXES = frozenset({"sudo", "env", "nohup", "timeout"})
_PROGRAM = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*\Z")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_IMPORT = re.compile(r"(?:^|[;\n])\s*(?:import|from)\s+([A-Za-z]\w*)")
_PYTHON = ("python", "python3")


class ImageManifest(BaseModel):
    """Contents of a desktop image, as its build found them."""

    model_config = ConfigDict(frozen=True)
    schema_version: int
    programs: frozenset[str]
    """Names that a command finds on the path."""
    modules: frozenset[str] = frozenset()
    """Python modules of the desktop that are not part of Python."""

    def has(self, need: str) -> bool:
        """Return whether the image has an application, a program, or a module (`python:NAME`)."""
        kind, colon, module = need.partition(":")
        if colon and kind == "python":
            return module in self.modules
        return any(program in self.programs for program in APPLICATIONS.get(need, (need,)))


def read_manifest(text: str | None) -> ImageManifest | None:
    """The manifest that an image carries; None without a readable one, as in images of others."""
    try:
        return None if text is None else ImageManifest.model_validate_json(text)
    except ValidationError:
        return None


def missing_needs(task: Mapping[str, Any], manifest: ImageManifest) -> list[str]:
    """Needs of the task that the image lacks, each with the place in the task: `chrome (related_apps)`."""
    return [f"{need} ({place})" for need, place in task_needs(task).items() if not manifest.has(need)]


def task_needs(task: Mapping[str, Any]) -> dict[str, str]:
    """Applications, programs and Python modules (`python:NAME`) that the task needs; each with its first place.

    Commands of the evaluator's getters do not count: they ask for what the agent should have made or installed.
    """
    needs: dict[str, str] = {}
    installed: set[str] = set()
    for need, place in _found(task, installed):
        if need not in installed:
            needs.setdefault(need, place)
    return needs


def _found(task: Mapping[str, Any], installed: set[str]) -> Iterator[tuple[str, str]]:
    for name in task.get("related_apps") or ():
        plain = str(name).strip().lower().replace(" ", "_")
        if plain and plain != "os":  # every desktop is one
            yield _RELATED.get(plain, plain), "related_apps"
    evaluator = task.get("evaluator") or {}
    for field, steps in (("config", task.get("config")), ("evaluator.postconfig", evaluator.get("postconfig"))):
        for index, step in enumerate(steps or ()):
            for need in _of_step(step, installed):
                yield need, f"{field}[{index}]"
    for side in ("result", "expected"):
        sources = evaluator.get(side) or []
        for source in sources if isinstance(sources, list) else [sources]:
            if isinstance(source, dict) and (application := _GETTERS.get(str(source.get("type")))):
                yield application, f"evaluator.{side}"


def _of_step(step: Mapping[str, Any], installed: set[str]) -> Iterator[str]:
    kind, parameters = step.get("type"), step.get("parameters") or {}
    if need := _SETUP.get(str(kind)):
        yield need
    elif kind == "open":
        suffix = PurePosixPath(str(parameters.get("path", ""))).suffix.removeprefix(".").lower()
        yield from (application for application, suffixes in _OPENS.items() if suffix in suffixes)
    elif kind in ("launch", "execute", "command", "execute_with_verification"):
        command = parameters.get("command") or ""
        if isinstance(command, list):
            yield from _of_command([str(word) for word in command], installed)
        else:
            yield from _of_script(str(command), installed)


def _of_script(script: str, installed: set[str]) -> Iterator[str]:
    """The first words of its commands. What cannot be read needs nothing that we could name."""
    # a line ends a command as `;` does, unless it is quoted: so it is punctuation here, not white space
    lexer = shlex.shlex(script, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    words: list[str] = []
    try:
        for token in lexer:
            if token.strip("();|&\n"):
                words.append(token)
            else:
                yield from _of_command(words, installed)
                words = []
    except ValueError:  # an unbalanced quote
        return
    yield from _of_command(words, installed)


def _of_command(words: list[str], installed: set[str]) -> Iterator[str]:
    while words and (_ASSIGNMENT.match(words[0]) or words[0] in _SHELL_WORDS - {"cd", "echo"} or words[0] in _PREFIXES):
        skipped, words = words[0], words[1:]
        if skipped in _PREFIXES:
            yield from () if skipped == "env" else (skipped,)
            while words and (words[0].startswith("-") or words[0].isdigit()):
                words = words[1:]
        elif skipped in ("for", "case", "function", "select", "[", "[[", "export", "history", "exit", "kill", "set"):
            return  # what follows is not a command
    if not words or words[0] in _SHELL_WORDS:
        return
    if words[0] == "su":
        return
    name = words[0].removeprefix("/usr/bin/").removeprefix("/bin/")
    if not _PROGRAM.match(name):  # a file of the task, a variable, …
        return
    yield _application(name, words)
    if name in ("bash", "sh") and "-c" in words[:-1]:
        yield from _of_script(words[words.index("-c") + 1], installed)
    elif name in _PYTHON and "-c" in words[:-1]:
        for module in _IMPORT.findall(words[words.index("-c") + 1]):
            if module not in sys.stdlib_module_names:
                yield f"python:{module}"
    elif name in ("apt", "apt-get") and "install" in words:
        installed.update(word for word in words[words.index("install") + 1 :] if not word.startswith("-"))


def _application(program: str, words: Iterable[str]) -> str:
    """The application that a program is, or the program itself."""
    if program in APPLICATIONS["libreoffice"]:
        parts = (f"libreoffice_{word.removeprefix('--')}" for word in words if word.startswith("--"))
        return next((part for part in parts if part in APPLICATIONS), "libreoffice")
    for application in ("chrome", "vscode"):
        if program in APPLICATIONS[application]:
            return application
    return program
