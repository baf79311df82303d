"""One question, one process. The next process is started in advance, so a question does not wait for imports."""

import json
import subprocess
import sys
import threading
from pathlib import Path

from guest.errors import GuestError

PACKAGE_ROOT = Path(__file__).parents[2]


class AccessibilityHelper:
    """Asks a fresh reader process and keeps the following one warm."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._spare: subprocess.Popen[bytes] | None = None

    def ask(self, question: str) -> str | None:
        """The reader's answer to `tree` or `terminal`. Raises GuestError (500) when it fails or takes too long."""
        reader = self._take()
        request = json.dumps({"question": question, "budget_s": self._timeout_s * 0.8}).encode() + b"\n"
        try:
            answer, complaint = reader.communicate(request, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            reader.kill()
            reader.communicate()
            raise GuestError(f"the accessibility bus gave no answer within {self._timeout_s:g} s", 500) from None
        if reader.returncode != 0:
            last_line = complaint.decode("utf-8", errors="replace").strip().rpartition("\n")[2]
            raise GuestError(f"the accessibility tree cannot be read: {last_line}", 500)
        return json.loads(answer)

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            reader, self._spare = self._spare, None
            if reader is None or reader.poll() is not None:
                reader = self._start()
            self._spare = self._start()
            return reader

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "guest.accessibility.reader"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=PACKAGE_ROOT)
