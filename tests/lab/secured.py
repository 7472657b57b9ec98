"""The controller with certificates as a newcomer makes it, and hosts that ask it by theirs.

```text
 tidegate-controller init, certificate ─▶ folder/ca.pem, s1.pem, controller.toml ─ filled in ─▶ Secured.start
 tidegate controller enrol (Rust) ─▶ folder of a host: host.pem, ca.pem ─▶ Host ─HTTPS─▶ the one that leads
```
"""

import json
import re
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tidegate_controller

from .fabric import Fabric, address
from .host import BINARY
from .process import Process

SOURCE = Path(tidegate_controller.__file__).parents[1]
SEGMENT = 100
MANAGER = "db:Open_vSwitch,Open_vSwitch,manager_options"
"""Where a database of Open vSwitch listens for who sets queues, as distributions start it."""


def program(*words: str) -> list[str]:
    """`tidegate-controller WORDS`."""
    return ["env", f"PYTHONPATH={SOURCE}", sys.executable, "-m", "tidegate_controller.main", *words]


def _replaced(text: str, new: Mapping[str, str]) -> str:
    for old, its in new.items():
        assert old in text, old
        text = text.replace(old, its)
    return text


class Secured:
    """What `tidegate-controller init` has made, for one switch and its hosts."""

    def __init__(self, fabric: Fabric, folder: Path) -> None:
        self.fabric, self.folder = fabric, folder
        hosts = [word for host in fabric.edges for word in ("--host", host)]
        self.said = self.command("init", "--folder", str(folder), "--name", "127.0.0.1", *hosts)
        self.tokens = dict(re.findall(r"^(\S+): token, shown once: (\S+)$", self.said, re.MULTILINE))
        self.command("certificate", "--folder", str(folder), "s1")

    def command(self, *words: str) -> str:
        """A command of the program; what it says."""
        return self.fabric.net.run(program(*words))

    def connect(self, *ports: int) -> None:
        """What is typed at the switch."""
        folder = self.folder
        self.fabric.ovs.vsctl(f"set-ssl {folder}/s1.key {folder}/s1.pem {folder}/ca.pem")
        self.fabric.ovs.vsctl("set-manager pssl:6640:127.0.0.1")
        self.fabric.connect(" ".join(f"ssl:127.0.0.1:{port}" for port in ports))

    def filled_in(
        self,
        file: Path,
        openflow: int,
        api: int,
        more: str,
        lease: str = "15s",
        hosts: Collection[str] | None = None,
    ) -> None:
        """The file that `init` has made, as it is after the operator filled it in.

        All that is a comment there is in force, of `hosts` those that are named; `more` are other tables.
        """
        text = (self.folder / "controller.toml").read_text()
        text = re.sub(r"^# ?(?=\[|[a-z]+ = )", "", text, flags=re.MULTILINE)
        text = re.sub(r"^\[switches\.s2\].*?(?=^\[hosts\.)", "", text, flags=re.MULTILINE | re.DOTALL)
        head, *tables = re.split(r"(?=^\[hosts\.)", text, flags=re.MULTILINE)
        new = {"0.0.0.0:6653": f"127.0.0.1:{openflow}", "0.0.0.0:6654": f"127.0.0.1:{api}"}
        new |= {"10.0.0.11": "127.0.0.1", "[keys]\n": f'[keys]\nstore = "{file}.trust"\n'}
        new |= {"[api]\n": f'[api]\nlease = "{lease}"\npublic = "https://127.0.0.1:{api}"\n'}
        parts = [_replaced(head, new)]
        ends = self.fabric.edges.items()
        for number, (table, (host, port)) in enumerate(zip(tables, ends, strict=True), 1):
            if hosts is not None and host not in hosts:
                continue
            own = {f"s1:{number + 1}": port.replace(".", ":"), f"10.1.0.{number}": address(number)}
            parts.append(_replaced(table, own))
        file.write_text("".join([*parts, "\n", more, "\n"]))

    def start(self, file: Path, api: int) -> Process:
        """The program, as soon as its API is there."""
        process = self.fabric.net.spawn(*program("--config", str(file)))
        served = f"the API is served at https://127.0.0.1:{api}"
        process.wait_for("the API", lambda: served in process.output(), 60)
        return process

    def tidegate(self, urls: Sequence[str], *words: str) -> tuple[int, str]:
        """Exit code and all output of `tidegate WORDS` at these controllers."""
        reach = [word for url in urls for word in ("--controller", url)]
        done = self.fabric.net.try_run([str(BINARY), *words, *reach, "--ca", str(self.folder / "ca.pem")])
        return done.returncode, done.stdout + done.stderr

    def as_operator(self, urls: Sequence[str], *words: str) -> tuple[int, str]:
        """`tidegate WORDS` with the operators' token."""
        return self.tidegate(urls, *words, "--token-file", str(self.folder / "operator.token"))


class Host:
    """A host that has enrolled, and asks as its agent does."""

    def __init__(self, secured: Secured, name: str, folder: Path, urls: Sequence[str]) -> None:
        """Has nothing yet but its token."""
        self.secured, self.name, self.folder, self.urls = secured, name, folder, list(urls)
        self.number = list(secured.fabric.edges).index(name) + 1
        self.vnic = f"v{self.number}"
        self.arrivals: list[str] = []
        """Remotes that it has admitted."""
        self.found = ""
        """The URL that answered last."""

    def enrol(self) -> tuple[int, str]:
        """Uses its token."""
        token = self.folder.with_suffix(".token")
        token.touch(0o600)
        token.write_text(self.secured.tokens[self.name] + "\n")
        return self._enrol("--token-file", str(token))

    def renew(self) -> tuple[int, str]:
        """A new certificate for the old one."""
        return self._enrol("--renew")

    def _enrol(self, *words: str) -> tuple[int, str]:
        own = ("controller", "enrol", "--host", self.name, "--folder", str(self.folder), "--uplink", "up")
        return self.secured.tidegate(self.urls, *own, *words)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """A request to the controller that leads: the last one first, then the one that a standby names."""
        tried: list[str] = []
        ways = [self.found or self.urls[0], *self.urls]
        status, answer = 0, None
        while ways:
            url = ways.pop(0)
            if url in tried:
                continue
            tried.append(url)
            status, answer = self.ask_at(url, method, path, body)
            if status and not (status == 503 and answer["code"] == "standby"):
                self.found = url
                break
            if status and answer.get("leader"):
                ways.insert(0, answer["leader"])
        return status, answer

    def ask_at(self, url: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """A request to one controller; status 0 if there is no answer."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        context.load_cert_chain(self.folder / "host.pem")
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            url + path, method=method, data=data, headers={"Content-Type": "application/json"}
        )

        def send() -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(request, timeout=35, context=context) as answer:
                    text = answer.read()
                    return answer.status, json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                return error.code, json.loads(error.read())
            except OSError as error:
                return 0, str(error)

        return self.secured.fabric.net.call(send)

    def register(self) -> tuple[int, Any]:
        """Announces one vNIC, and what it has admitted; status and view."""
        mac = f"02:00:0a:00:{self.number:02x}:01"
        own = {"name": self.vnic, "mac": mac, "segment": SEGMENT, "addresses": [], "to": []}
        uplink = {"name": "up", "address": address(self.number), "port": 4789, "arrival_budget": 100_000}
        arrivals = [{"remote": remote, "refused": None} for remote in self.arrivals]
        body = {"run": self.name, "uplinks": [uplink], "vnics": [own], "arrivals": arrivals}
        return self.ask("PUT", f"/v1/hosts/{self.name}", body)

    def request(self, other: "Host", port: int = 50_001) -> tuple[int, Any]:
        """Asks for the path to another host's vNIC."""
        ends = {"source": address(self.number), "target": address(other.number)}
        body = {
            **{"vnic": self.vnic, "remote": other.vnic, "source": self.name, "target": other.name},
            "key": {**ends, "source_port": port, "target_port": 4789},
            **{"dscp": 40, "rate": 2_000_000, "burst": 3000, "smallest_frame": 100, "largest_frame": 1500},
            "budget": 10**9,
        }
        return self.ask("PUT", f"/v1/paths/{self.vnic}%3E{other.vnic}", body)

    def keys(self) -> list[dict[str, Any]]:
        """Those of its segments."""
        status, found = self.ask("GET", f"/v1/hosts/{self.name}/keys")
        assert status == 200, found
        return list(found["segments"])
