"""`tidegate-controller init | token | certificate`.

```text
 words ─▶ folder.py ─▶ files; tokens and lines for the configuration on standard output      a fault: 1
```
"""

import argparse
import ipaddress
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate_controller.config.section import NAME
from tidegate_controller.trust import folder, secret
from tidegate_controller.trust.folder import Token
from tidegate_controller.trust.roll import OPERATOR, Role
from tidegate_controller.trust.secret import SecretError
from tidegate_controller.trust.settings import FOLDER

DOMAIN = re.compile(r"(?=.{1,253}$)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")


def run(words: Sequence[str]) -> int:
    """Returns the exit status."""
    options = _parser().parse_args(words)
    try:
        work: Callable[[argparse.Namespace], None] = options.work
        work(options)
    except (SecretError, OSError) as error:
        print(f"tidegate-controller: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tidegate-controller")
    commands = parser.add_subparsers(required=True)

    init = commands.add_parser(
        "init", help="makes certificates, keys, tokens and a configuration to begin with"
    )
    _in_folder(init)
    init.add_argument(
        "--name",
        type=_address,
        action="append",
        required=True,
        metavar="ADDRESS",
        help="IP address or name by which hosts reach the controller; once for each",
    )
    init.add_argument("--host", type=_host, action="append", default=[], metavar="NAME", help="gets a token")
    init.set_defaults(work=_init)

    token = commands.add_parser("token", help="makes an enrolment token of a host")
    token.add_argument("host", type=_host, metavar="NAME")
    token.set_defaults(work=_token)

    made = commands.add_parser("certificate", help="makes a certificate with its key")
    _in_folder(made)
    made.add_argument(
        "name", type=_named, nargs="?", metavar="NAME", help="name of a switch in the configuration"
    )
    kind = made.add_mutually_exclusive_group()
    kind.add_argument(
        "--switch", action="store_const", const=Role.SWITCH, dest="role", help="of a switch (default)"
    )
    kind.add_argument(
        "--operator", action="store_const", const=Role.OPERATOR, dest="role", help="of operators"
    )
    kind.add_argument(
        "--server", action="store_const", const=Role.CONTROLLER, dest="role", help="of the controller"
    )
    made.add_argument(
        "--name",
        type=_address,
        action="append",
        default=[],
        dest="addresses",
        metavar="ADDRESS",
        help="of the controller, with --server; default: the addresses of its certificate before",
    )
    made.add_argument(
        "--replace", action="store_true", help="put it into the place of the files that are there"
    )
    made.set_defaults(work=_certificate, role=Role.SWITCH)
    return parser


COMMANDS = ("init", "token", "certificate")


def _in_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", type=_absolute, default=Path(FOLDER), metavar="DIR", help=f"default: {FOLDER}"
    )


def _init(options: argparse.Namespace) -> None:
    for token in folder.init(options.folder, options.name, options.host, time.time()):
        _show(token)
    print(
        f"{options.folder}: fill in controller.toml; give each host ca.pem and its token."
        " The operators' token is in operator.token"
    )


def _token(options: argparse.Namespace) -> None:
    _show(Token(options.host, secret.new_token()))


def _show(token: Token) -> None:
    print(f"{token.host}: token, shown once: {token.text}")
    print(f"{token.host}: in [hosts.{token.host}]: {token.line}")


def _certificate(options: argparse.Namespace) -> None:
    role: Role = options.role
    usual = {Role.OPERATOR: OPERATOR, Role.CONTROLLER: folder.SERVER}.get(role)
    name = usual or options.name
    if name is None or (usual and options.name not in (None, usual)):
        raise SecretError("certificate: the NAME of a switch, --operator or --server was expected")
    key, pem, serial = folder.certificate(
        options.folder, role, name, options.addresses, time.time(), options.replace
    )
    print(f"{key} and {pem}: {role} {name}, serial number {serial:x}")


def _host(text: str) -> str:
    if text == OPERATOR:
        raise argparse.ArgumentTypeError(
            f"no host is called {OPERATOR!r}: certificates of operators have that name"
        )
    return _named(text)


def _named(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:60]!r} is no name: {NAME.pattern}")
    return text


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if not DOMAIN.fullmatch(text):
            raise argparse.ArgumentTypeError(f"{text[:60]!r} is no IP address and no name") from None
        return text


def _absolute(text: str) -> Path:
    return Path(text).absolute()
