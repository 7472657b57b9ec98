"""`tidegate-controller --config FILE`: starts, logs, and stops cleanly on SIGTERM.

```text
 FILE ─▶ Config ─▶ state, Trust, Runtime, Api ─▶ until SIGTERM or SIGINT: 0
         └ faulty: 2  └ damaged: 3   ▲            └ a fault: 1
                                     └ SIGHUP: the file is read anew (reload.py)
 init, token, certificate ─▶ commands.py
```

A controller that may lead no more ends with 1, too: the one that is started in its place is a standby.
"""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegate_controller import commands
from tidegate_controller.api import trusted
from tidegate_controller.api.server import create
from tidegate_controller.config import Config, ConfigError, load
from tidegate_controller.events import TellHost
from tidegate_controller.reload import Reload
from tidegate_controller.runtime.kept import Kept
from tidegate_controller.runtime.loop import Runtime
from tidegate_controller.runtime.systemd import Service
from tidegate_controller.runtime.trusting import trusting
from tidegate_controller.state.opening import opened
from tidegate_controller.state.store import Damaged, StateError
from tidegate_controller.trust.secret import SecretError
from tidegate_controller.trust.stores import StoreError

log = logging.getLogger("tidegate_controller")


async def serve(config: Config, file: Path, forget: bool = False) -> None:
    """Runs until a signal. Raises what ended it, if that was a fault.

    `file` is read again at SIGHUP. With `forget`, what was kept is given up.
    """
    loop, kept, service = asyncio.get_running_loop(), Kept(), Service()
    store, election = opened(config.state, config.api.public or "", forget)
    trust = await trusting(config, election)

    def told(change: TellHost) -> None:
        api.service.told(change)

    runtime = Runtime(config, kept, told, trust=trust, store=store, election=election)
    if trust is None:
        api = create(config, runtime, kept)
    else:
        known = trusted.Trusted(trust, config.api.operator)
        served = trusted.handlers(trust, lambda: api.service)
        api = create(config, runtime, kept, trust.api, served, identities=known)
    running = asyncio.current_task()
    assert running is not None
    ended = False

    def end(name: str) -> None:
        nonlocal ended
        log.info("%s: the controller ends; switches keep what they have", name)
        ended = True
        service.ends()
        running.cancel()

    reload = Reload(config, file, trust, runtime, api)
    loop.add_signal_handler(signal.SIGHUP, reload.wanted.set)
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, end, one.name)
    reloading = loop.create_task(reload.run())
    try:
        await runtime.start()
        await api.start()
        service.ready()
        await runtime.run()
    except asyncio.CancelledError:
        if not ended:
            raise
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(one)
        reloading.cancel()
        await api.stop()
        await runtime.stop()
        if trust is not None:
            await trust.close()


def main(words: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    words = list(sys.argv[1:] if words is None else words)
    if words and words[0] in commands.COMMANDS:
        return commands.run(words)
    parser = argparse.ArgumentParser(
        "tidegate-controller",
        description="The controller of the network.",
        epilog=f"Commands, each with --help: {', '.join(commands.COMMANDS)}.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="TOML")
    parser.add_argument("--check", action="store_true", help="check the file only")
    parser.add_argument(
        "--forget",
        action="store_true",
        help="give up all paths that were kept, and begin anew (a file is kept aside)",
    )
    options = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        config = load(options.config)
        if not options.check:
            asyncio.run(serve(config, options.config, options.forget))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (StateError, SecretError, StoreError) as error:
        log.error("%s; switches keep what they have", error)
        return 3 if isinstance(error, Damaged) else 1
    except OSError as error:
        log.error("cannot listen: %s", error)
        return 1
    except Exception:
        log.exception("a fault of the controller")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
