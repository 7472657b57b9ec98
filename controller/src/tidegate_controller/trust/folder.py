"""The folder of the controller's secrets, as commands make it.

```text
 init ─▶ ca.key ca.pem server.key server.pem operator.token key-encryption.key controller.toml
 certificate NAME ─▶ NAME.key NAME.pem          all 0600, none over another file
 token NAME ─▶ on the terminal only, with the line for the configuration
```
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from tidegate_controller.trust import secret
from tidegate_controller.trust.authority import Authority
from tidegate_controller.trust.roll import OPERATOR, Role
from tidegate_controller.trust.secret import SecretError, create

LIFETIME = 366 * 86400.0
"""s of the certificates of the controller, of switches and of operators."""
SERVER = "controller"
OURS = ("ca", "server", OPERATOR, "key-encryption")
"""Names of files that no switch's may replace."""

STARTER = """\
# The controller of the network. Fill in switches, links and hosts: docs/reference/controller.md of Tidegate.

[openflow]
listen = "0.0.0.0:6653"           # where switches connect
tls = true                        # certificates: tidegate-controller certificate s1

[api]
listen = "0.0.0.0:6654"           # where hosts and operators ask
operator-token-file = "{folder}/operator.token"

[tls]
folder = "{folder}"

[keys]
rotate = "24h"
overlap = "1h"

[terms]                           # of all links and hosts' ports; each may state its own
capacity = "1Gbit"
reservable = "500Mbit"
levels = [{{ delay = "200us", frames = 5000 }}, {{ delay = "2ms", frames = 5000 }}]

# [switches.s1]
# datapath = "0000000000000001"   # ovs-vsctl get bridge s1 datapath-id
# database = "ssl:10.0.0.11:6640" # ovs-vsctl set-manager pssl:6640

# [switches.s2]
# datapath = "0000000000000002"
# database = "ssl:10.0.0.12:6640"

# [[links]]
# between = ["s1:1", "s2:1"]
{hosts}"""
HOST = """
# [hosts.{name}]
# token = "{digest}"
# port = "s1:{port}"
# address = "10.1.{high}.{low}"            # of its outer frames
# mac = "02:00:00:00:{high:02x}:{low:02x}"       # of its uplink
# segments = [100]                # in which it may announce vNICs, and whose keys it gets
# macs = ["02:00:0a:{high:02x}:{low:02x}:00/40"] # of these vNICs
"""


@dataclass(frozen=True)
class Token:
    """An enrolment token of a host, and its line."""

    host: str
    text: str

    @property
    def line(self) -> str:
        """For `[hosts.NAME]`."""
        return f'token = "{secret.digest(self.text)}"'


def init(folder: Path, names: Sequence[str], hosts: Sequence[str], now: float) -> list[Token]:
    """Makes the folder's files. Raises `FileExistsError` before it writes any, or `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    tokens = [Token(host, secret.new_token()) for host in hosts]
    authority, own = Authority.create(now)
    server, _ = authority.pair(Role.CONTROLLER, SERVER, now, LIFETIME, names)
    files = {
        "ca.key": own.key.reveal(),
        "ca.pem": own.certificate.encode(),
        "server.key": server.key.reveal(),
        "server.pem": server.certificate.encode(),
        "operator.token": secret.new_token().encode() + b"\n",
        "key-encryption.key": secrets.token_hex(32).encode() + b"\n",
    }
    for name in files:
        if (folder / name).exists() or (folder / name).is_symlink():
            raise FileExistsError(
                f"{folder / name} is there already, and nothing was changed: name another folder"
            )
    for name, text in files.items():
        create(folder / name, text)
    if not (folder / "controller.toml").exists():
        tables = "".join(_table(number, token) for number, token in enumerate(tokens, 1))
        create(folder / "controller.toml", STARTER.format(folder=folder, hosts=tables).encode())
    return tokens


def _table(number: int, token: Token) -> str:
    high, low = divmod(number, 256)
    return HOST.format(name=token.host, digest=secret.digest(token.text), port=number + 1, high=high, low=low)


def certificate(
    folder: Path, role: Role, name: str, addresses: Sequence[str], now: float, replace: bool
) -> tuple[Path, Path, int]:
    """Makes `NAME.key` and `NAME.pem`; returns both, and the serial number.

    Raises `SecretError` or `OSError`.
    """
    if role == Role.SWITCH and name in OURS:
        raise SecretError(f"{name!r} is the name of a file of its own: call the switch otherwise")
    authority = _load(folder)
    stem = "server" if role == Role.CONTROLLER else OPERATOR if role == Role.OPERATOR else name
    paths = folder / f"{stem}.key", folder / f"{stem}.pem"
    if role == Role.CONTROLLER and not addresses and paths[1].exists():
        addresses = names_in(paths[1])
    made, issued = authority.pair(role, name, now, LIFETIME, addresses)
    there = [path for path in paths if path.exists()]
    if there and not replace:
        raise FileExistsError(f"{there[0]} is there already, and nothing was changed: add --replace")
    news = [path.with_suffix(path.suffix + ".new") for path in paths]
    for path, text in zip(news, (made.key.reveal(), made.certificate.encode()), strict=True):
        path.unlink(missing_ok=True)
        create(path, text)
    for new, path in zip(news, paths, strict=True):
        new.rename(path)
    return *paths, issued.serial


def _load(folder: Path) -> Authority:
    key = secret.find(None, folder, "ca.key")
    try:
        text = (folder / "ca.pem").read_bytes()
    except OSError as error:
        raise SecretError(f"{folder / 'ca.pem'} cannot be read: {error.strerror}") from None
    return Authority.load(text, secret.read(key), f"{folder / 'ca.pem'} and {key}")


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SecretError(f"{path}: no certificate in PEM: {error}") from None


def ends(path: Path) -> float:
    """When a certificate ends, Unix time, s. Raises `SecretError`."""
    return _read(path).not_valid_after_utc.timestamp()


def names_in(path: Path) -> list[str]:
    """Names and addresses of a certificate. Raises `SecretError`."""
    try:
        found = _read(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(one.value) for one in found]
