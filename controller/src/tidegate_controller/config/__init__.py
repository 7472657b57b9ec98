"""The TOML file of the operator.

```text
 FILE ─▶ file: Section by Section ─▶ Config     a fault ─▶ ConfigError
```
"""

from tidegate_controller.config.file import LARGEST_FILE, Config, load, parse
from tidegate_controller.config.section import ConfigError

__all__ = ["LARGEST_FILE", "Config", "ConfigError", "load", "parse"]
