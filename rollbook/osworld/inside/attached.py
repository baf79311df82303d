"""Canonical `DesktopEnv`, attached to a desktop that already runs.

Only the constructor and `_start_emulator` differ: everything that sets up or scores is OSWorld's own code.
"""

import logging
from typing import Any


def attach(request: dict[str, Any]) -> Any:
    """A `DesktopEnv` of the request's task: its task information set, its cache directory made.

    Raises what `desktop_env` raises, for instance AttributeError for a metric that it does not have.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _keep_tldextract_offline()
    env = _attached_class()(request)
    env._set_task_info(request["task"])
    env.setup_controller.reset_cache_dir(env.cache_dir)
    return env


def _keep_tldextract_offline() -> None:
    """`compare_urls` would fetch the list of public suffixes on first use; the bundled one is meant to be enough."""
    import tldextract  # type: ignore[import-not-found]

    tldextract.extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=(), fallback_to_snapshot=True)


def _attached_class() -> Any:
    from desktop_env.controllers.python import PythonController  # type: ignore[import-not-found]
    from desktop_env.controllers.setup import SetupController  # type: ignore[import-not-found]
    from desktop_env.desktop_env import DesktopEnv  # type: ignore[import-not-found]

    class AttachedEnv(DesktopEnv):  # type: ignore[misc]
        def __init__(self, request: dict[str, Any]) -> None:
            ports = request["ports"]
            self.provider_name = "docker"
            self.region = None
            self.manager = self.provider = None
            self.path_to_vm = ""
            self.os_type = "Ubuntu"
            self.snapshot_name = "init_state"
            self.headless = True
            self.vm_ip = request["host"]
            self.server_port = ports["server"]
            self.chromium_port = ports["chromium"]
            self.vlc_port = ports["vlc"]
            self.vnc_port = 8006  # nothing in setup or evaluation looks at it
            self.enable_proxy = self.current_use_proxy = False
            self.is_environment_used = False
            self.client_password = request["client_password"]
            self.screen_width, self.screen_height = request["screen"]
            self.cache_dir_base = request["cache_dir"]
            self.require_a11y_tree = self.require_terminal = False
            self.instruction = None
            self.action_space = "pyautogui"
            self._traj_no = 0
            self._step_no = 0
            self.action_history: list[Any] = []
            self.controller = PythonController(vm_ip=self.vm_ip, server_port=self.server_port)
            self.setup_controller = SetupController(
                vm_ip=self.vm_ip,
                server_port=self.server_port,
                chromium_port=self.chromium_port,
                vlc_port=self.vlc_port,
                cache_dir=self.cache_dir_base,
                client_password=self.client_password,
                screen_width=self.screen_width,
                screen_height=self.screen_height,
            )

        def _start_emulator(self) -> None:
            """The desktop already runs."""

    return AttachedEnv
