"""The answer names the libraries that were read, their releases, and the texts that stood in."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchwise_analysis.interp.concrete.library import replacements
from torchwise_analysis.names.project import Project
from torchwise_analysis.plan.sources import libraries_read


def told(folder: Path, release: str, replaced: list[str]) -> list[str]:
    package = folder / "timm" / "models"
    package.mkdir(parents=True)
    (folder / f"timm-{release}.dist-info").mkdir()
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.write_text("")
    project = Project([], [str(folder)])
    paths = [str(package.parent / "__init__.py"), str(package / "__init__.py")]
    return list(libraries_read(project, paths, replaced))


def test_a_library_is_named_with_its_release(tmp_path: Path) -> None:
    assert told(tmp_path, "1.0.20", []) == ["timm 1.0.20 is followed from its own text (2 files)"]


@pytest.mark.parametrize(
    ("release", "is_outside"), [("1.0.31", False), ("1.0.3", False), ("0.9.16", True), ("2.1.0", True)]
)
def test_a_release_that_a_text_was_not_written_for_is_said(
    tmp_path: Path, release: str, is_outside: bool
) -> None:
    (said,) = told(tmp_path, release, ["timm.models._factory", "timm.models._registry"])
    assert "for machinery of its vision.txt stands in" in said
    assert ("written for other releases: 1.0" in said) is is_outside


def test_every_text_has_its_releases() -> None:
    files = {replacements.home(name) for name in replacements.sections()}
    assert files - set(replacements.RELEASES) == {"distributions.txt"}
    for file, libraries in replacements.RELEASES.items():
        for low, high in libraries.values():
            assert low <= high, file
