"""The program's API by TLS: a host from its token to keys, what others get, and a certificate's end."""

import json
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from trusted import Program, csr, made, private

from tidegate_controller.trust import Role, folder
from tidegate_controller.trust.secret import digest

LEVEL = '{ delay = "1ms", frames = 9 }'
TERMS = f'[terms]\ncapacity = "1Gbit"\nreservable = "1Mbit"\nlevels = [{LEVEL}, {LEVEL}]\n'


class Client:
    """Asks the program's API."""

    def __init__(self, path: Path, tokens: dict[str, str]) -> None:
        hosts = "".join(
            f'[hosts.{name}]\ntoken = "{digest(token)}"\nsegments = [7, {number}]\nport = "s1:{number}"\n'
            f'address = "10.0.0.{number}"\nmac = "02:00:00:00:00:0{number}"\n'
            for number, (name, token) in enumerate(tokens.items(), 1)
        )
        api = f'[api]\nlisten = "127.0.0.1:0"\noperator-token-file = "{path}/c/operator.token"\n'
        self.path, self.tokens, self.more = path, tokens, api + TERMS + hosts
        self.program = Program(path, self.more)
        self.program.until("the API is served at https://127.0.0.1:")
        text = self.program.log.read_text().partition("the API is served at ")[2]
        self.url = text.split()[0]

    def ask(
        self, method: str, path: str, by: tuple[Path, Path] | str | None = None, body: object = None
    ) -> tuple[int, Any]:
        """A request by a certificate, a token, or nothing."""
        context = ssl.create_default_context(cafile=str(self.path / "c" / "ca.pem"))
        headers = {"Content-Type": "application/json"}
        if isinstance(by, str):
            headers["Authorization"] = f"Bearer {by}"
        elif by is not None:
            context.load_cert_chain(*by)
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40, context=context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())["message"]

    def keep(self, name: str, certificate: str, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
        """Files of a host."""
        files = self.path / f"{name}.pem", self.path / f"{name}.key"
        files[0].write_text(certificate)
        files[1].write_bytes(private(key))
        return files

    def made(self, role: Role, name: str) -> tuple[Path, Path]:
        """A certificate of our authority."""
        key, pem, _ = folder.certificate(self.path / "c", role, name, [], time.time(), True)
        return pem, key


@pytest.fixture(name="client")
def _client(tmp_path: Path) -> Any:  # noqa: ANN401 - a generator
    client = Client(tmp_path, made(tmp_path / "c", "h1", "h2"))
    yield client
    client.program.process.kill()
    client.program.process.wait()


def test_from_a_token_to_keys(client: Client) -> None:
    """And from a certificate to the next one, until it is revoked."""
    key, tokens = ec.generate_private_key(ec.SECP256R1()), client.tokens
    status, found = client.ask("POST", "/v1/hosts/h1/enrol", tokens["h1"], {"request": csr(key)})
    assert status == 200
    first = client.keep("h1", found["certificate"], key)
    status, answer = client.ask("POST", "/v1/hosts/h1/enrol", tokens["h1"], {"request": csr()})
    assert (status, "was used already" in answer) == (401, True)
    announcement = {"run": "1", "uplinks": [], "vnics": [], "arrivals": []}
    assert client.ask("PUT", "/v1/hosts/h1", first, announcement)[0] == 200
    status, keys = client.ask("GET", "/v1/hosts/h1/keys", first)
    assert status == 200
    assert [one["segment"] for one in keys["segments"]] == [1, 7]
    assert keys["refresh"] == 1200 * 10**9
    status, renewed = client.ask("POST", "/v1/hosts/h1/enrol", first, {"request": csr(key, "h2")})
    assert status == 200
    second = client.keep("next", renewed["certificate"], key)
    assert client.ask("GET", "/v1/hosts/h1/keys", second) == (200, keys)

    serial = int(client.program.log.read_text().partition("host h1: certificate ")[2].split()[0], 16)
    client.program.write(f'revoked = ["{serial:x}"]')
    client.program.file.write_text(client.program.file.read_text() + client.more)
    client.program.reload("what is revoked are those of")
    status, answer = client.ask("GET", "/v1/hosts/h1/keys", first)
    assert (status, "is revoked" in answer) == (401, True)
    assert client.ask("GET", "/v1/hosts/h1/keys", second) == (200, keys)
    text = client.program.log.read_text()
    assert not any(one["key"] in text for one in keys["segments"])
    assert not any(token in text for token in tokens.values())


def test_what_others_get(client: Client) -> None:
    """Nothing of another host; by another role, nothing of a host at all."""
    key = ec.generate_private_key(ec.SECP256R1())
    status, found = client.ask("POST", "/v1/hosts/h2/enrol", client.tokens["h2"], {"request": csr(key)})
    assert status == 200
    other = client.keep("h2", found["certificate"], key)
    operator = (client.path / "c" / "operator.token").read_text().strip()
    announcement = {"run": "1", "uplinks": [], "vnics": [], "arrivals": []}
    keys, enrol, host = "/v1/hosts/h1/keys", "/v1/hosts/h1/enrol", "/v1/hosts/h1"
    body = {"request": csr()}
    for method, path, by, sent, expected in (
        ("GET", keys, None, None, (401, "no certificate was shown")),
        ("GET", keys, other, None, (403, "of host h2, not of h1")),
        ("GET", keys, client.tokens["h1"], None, (403, "a host's certificate was expected")),
        ("GET", keys, operator, None, (403, "a host's certificate was expected")),
        ("GET", keys, client.made(Role.OPERATOR, "operator"), None, (403, "a host's certificate")),
        ("GET", keys, client.made(Role.SWITCH, "h1"), None, (401, "is that of a switch, not of a host")),
        ("GET", keys, client.made(Role.HOST, "h3"), None, (401, "'h3' is not in the controller's")),
        ("PUT", host, client.tokens["h1"], announcement, (403, "a host's certificate")),
        ("PUT", host, other, announcement, (403, "of host h2, not of h1")),
        ("POST", enrol, other, body, (403, "of host h2, not of h1")),
        ("POST", enrol, operator, body, (403, "a host's token")),
        ("POST", enrol, None, body, (401, "no certificate was shown")),
        ("POST", enrol, "x", body, (401, "this token is that of no host")),
        ("POST", enrol, client.tokens["h1"], {"request": "x"}, (400, "no PKCS #10")),
    ):
        status, answer = client.ask(method, path, by, sent)
        assert (status, expected[1] in answer) == (expected[0], True), (method, path, answer)
    assert client.ask("GET", "/v1/hosts", operator)[0] == 200
    assert client.ask("GET", "/v1/hosts", client.made(Role.OPERATOR, "operator"))[0] == 200
    assert "Traceback" not in client.program.log.read_text()
