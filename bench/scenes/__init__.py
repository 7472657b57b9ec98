"""The scenes: every module of this folder holds one, as `SCENE`."""

import importlib
import pkgutil

from harness.model import Scene


def all_scenes() -> list[Scene]:
    """Every scene, in the order of the page."""
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    scenes: list[Scene] = [m.SCENE for m in modules if hasattr(m, "SCENE")]
    return sorted(scenes, key=lambda scene: (scene.order, scene.name))
