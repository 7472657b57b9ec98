"""`tidegate-controller --config FILE`: starts, logs, and stops cleanly on SIGTERM.

```text
 FILE ─▶ Config ─▶ Runtime ─▶ until SIGTERM or SIGINT: 0     a fault: 1     the configuration: 2
```
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegate_controller.config import Config, ConfigError, load
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime
from tidegate_controller.runtime.systemd import Service

log = logging.getLogger("tidegate_controller")


async def serve(config: Config) -> None:
    """Runs until a signal. Raises what ended it, if that was a fault."""
    loop, runtime = asyncio.get_running_loop(), Runtime(config, Kept())
    service = Service()
    running = asyncio.current_task()
    assert running is not None
    ended = False

    def end(name: str) -> None:
        nonlocal ended
        log.info("%s: the controller ends; switches keep what they have", name)
        ended = True
        service.ends()
        running.cancel()

    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, end, one.name)
    try:
        await runtime.start()
        service.ready()
        await runtime.run()
    except asyncio.CancelledError:
        if not ended:
            raise
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
        await runtime.stop()


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser("tidegate-controller", description="The controller of the network.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML")
    parser.add_argument("--check", action="store_true", help="check the file only")
    options = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = load(options.config)
        if not options.check:
            asyncio.run(serve(config))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        log.error("cannot listen: %s", error)
        return 1
    except Exception:
        log.exception("a fault of the controller")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
