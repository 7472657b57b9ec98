"""etcd members in a network namespace, with their data in a folder.

```text
 Etcd(folder, stack, 3) ─▶ m1 127.0.0.1:2379, m2 :2381, m3 :2383 ─▶ urls
```
"""

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tidegate_controller.state.etcd import Client, Unreachable

from .namespaces import Stack, can_make_namespaces
from .need import need, need_commands
from .process import Process, wait_for

COMMANDS = ("etcd", "etcdctl")
FIRST = 2379


class Etcd:
    """A cluster that runs."""

    def __init__(self, folder: Path, stack: Stack, count: int = 1, tls: Path | None = None) -> None:
        """`tls` is a folder with `ca.pem`, `cert.pem` and `key.pem`, which members and clients have."""
        self.folder, self.stack, self.tls = folder, stack, tls
        folder.mkdir(parents=True)
        scheme = "https" if tls else "http"
        self.urls = [f"{scheme}://127.0.0.1:{FIRST + 2 * number}" for number in range(count)]
        peers = [f"http://127.0.0.1:{FIRST + 2 * number + 1}" for number in range(count)]
        cluster = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        self.members = [self._start(number, peers[number], cluster) for number in range(count)]
        wait_for("etcd's leader", lambda: self.leader() is not None, 60)

    def _start(self, number: int, peer: str, cluster: str) -> Process:
        name = f"m{number}"
        client = self.urls[number]
        words = [
            *("nsenter", f"--net={self.stack.path}", "etcd", "--name", name),
            *("--data-dir", str(self.folder / name), "--initial-cluster", cluster),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        ]
        if self.tls:
            files = {"trusted-ca-file": "ca.pem", "cert-file": "cert.pem", "key-file": "key.pem"}
            words += [f"--{option}={self.tls / file}" for option, file in files.items()]
            words.append("--client-cert-auth")
        return Process(words, self.folder / f"{name}.log")

    def _etcdctl(self, urls: list[str], words: Sequence[str]) -> list[str]:
        files = {"cacert": "ca.pem", "cert": "cert.pem", "key": "key.pem"} if self.tls else {}
        secure = [f"--{option}={self.tls}/{file}" for option, file in files.items()]
        return ["etcdctl", f"--endpoints={','.join(urls)}", "--command-timeout=5s", *secure, *words]

    def ctl(self, *words: str) -> str:
        """`etcdctl WORDS`, asked of all members that run."""
        urls = [url for url, member in zip(self.urls, self.members, strict=True) if member.running]
        return self.stack.run(self._etcdctl(urls, words))

    def leader(self) -> int | None:
        """The number of the member that leads."""
        for number, member in enumerate(self.members):
            if not member.running:
                continue
            words = ("endpoint", "status", "-w", "json")
            done = self.stack.try_run(self._etcdctl([self.urls[number]], words))
            if done.returncode == 0 and done.stdout.strip():
                for one in json.loads(done.stdout):
                    status = one["Status"]
                    if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                        return number
        return None

    def hold(self) -> None:
        """Stop all members, as if no packet came through."""
        for member in self.members:
            member.popen.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `hold`."""
        for member in self.members:
            member.popen.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all members."""
        self.go_on()
        for member in self.members:
            member.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextmanager
def alone(folder: Path, tls: Path | None = None) -> Iterator[Etcd]:
    """One member, in a namespace of its own; skips the test where there cannot be one."""
    need_commands(*COMMANDS)
    need("no network namespaces: run as root, or `unshare --user --map-root-user`", can_make_namespaces())
    with Stack(folder / "net") as stack, Etcd(folder / "etcd", stack, tls=tls) as running:
        yield running


class Lossy(Client):
    """Loses answers of what has been done."""

    lose = 0

    async def call(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Asks, and may lose the answer."""
        answer = await super().call(path, body)
        if self.lose:
            self.lose -= 1
            raise Unreachable("the answer was lost")
        return answer
