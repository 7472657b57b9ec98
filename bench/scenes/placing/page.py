"""The page of all scenes about CPUs, from the last result of each.

```text
 scene, result ─▶ docs/performance/cores.json, one entry a scene ─▶ docs/performance/cores.md
```
"""

import json
import os
import shlex
import sys

from harness import page, report
from harness.machine import Machine
from harness.model import Context, Json, Result, Scene
from harness.pivot import figures_by_row

PAGE = "docs/performance/cores"
WRITTEN = "<!-- Written by `bench/run --scene cores_... --page`, beside cores.json: do not edit. -->"
HEAD = f"""# Which CPU does which part of the work

{WRITTEN}

Scenes that run alone, each with `--page`. [How to read these figures](../performance.md).
"""


def write(context: Context, scene: Scene, result: Result, seconds: float) -> None:
    """Replace a scene's part of the page, if the command line asks for the page."""
    if not context.options.page:
        return
    if result.tables and result.figures:
        figures = report.scene_document(scene, "", result, "", 0.0)["figures"]
        result.tables.append(figures_by_row(figures))
    command = shlex.join(["bench/run", *sys.argv[1:]])
    document = report.scene_document(scene, command, result, "", seconds) | dict(context.when)
    # The mean of a minute: the scene's own load, and that of other programs.
    machine = Machine().describe(distance=False) | {"load": f"{os.getloadavg()[0]:.0f}"}
    document |= {"order": scene.order, "machine": machine}
    # Windows are raw material: results.json of the run has them.
    document |= {"windows": [], "data": {}}
    file = context.root / f"{PAGE}.json"
    scenes: Json = json.loads(file.read_text()) if file.exists() else {}
    scenes[scene.name] = document
    file.write_text(json.dumps(scenes, indent=1) + "\n")
    file.with_suffix(".md").write_text(text(scenes))


def text(scenes: Json) -> str:
    """The page."""
    parts = [HEAD]
    for document in sorted(scenes.values(), key=lambda one: one["order"]):
        body = page.scene_page(document).replace(page.WRITTEN + "\n\n", "")
        body = body.replace(" [How to read these figures](../performance.md).", "")
        facts = ", ".join(
            f"{key} {value}" for key, value in document["machine"].items() if "below" not in key
        )
        lines = [f"#{line}" if line.startswith("#") else line for line in body.splitlines()]
        parts.append("\n".join(lines) + f"\n\nMeasured on: {facts}.\n")
    return "\n".join(parts)
