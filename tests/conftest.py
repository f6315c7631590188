"""Property tests wait for a busy machine, CI tries the same examples; no test knows results of another."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("patient"), derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") else "patient")


# A shell starts background jobs with interruptions ignored, and what a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Results that a test keeps are its own, and none of them reaches the user's cache. How wide the terminal
    is says no variable: processes of pytest-xdist have one from the terminal that started them."""
    monkeypatch.setenv("TORCHWISE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("COLUMNS", raising=False)
