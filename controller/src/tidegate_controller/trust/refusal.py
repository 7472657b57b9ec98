"""Why a request of a host was not done.

```text
 Enrolment, Keyring, Roll ─▶ Refusal(code, message) ─▶ API: status, body
```
"""

from typing import Literal

Code = Literal["invalid", "unauthorized", "forbidden", "busy"]


class Refusal(Exception):
    """`code` is one of the API's; `message` says what was wrong and what to do."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
