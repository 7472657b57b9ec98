"""Folders of the controller's files.

```text
 folder ─ not there ─▶ made, 0700
        └ of another user, or others may write in it ─▶ PermissionError: what to do
```

A user who may write in a folder can put another file into the place of ours.
"""

import os
import pwd
import stat
from pathlib import Path


def own(folder: Path) -> None:
    """Makes the folder, or checks the one that is there. Raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about, user = folder.stat(), os.geteuid()
    # In a folder with the sticky bit, such as /tmp, each user can change only files of his own.
    if about.st_mode & stat.S_ISVTX:
        return
    if about.st_uid not in (user, 0):
        raise PermissionError(f"the folder {folder} {belongs(about.st_uid, folder)}")
    # A group of this user's own, as many systems make one for each user, has no other member.
    by_group = about.st_mode & stat.S_IWGRP and about.st_gid != os.getegid()
    if by_group or about.st_mode & stat.S_IWOTH:
        raise PermissionError(
            f"other users may write in the folder {folder} (mode {stat.S_IMODE(about.st_mode):04o}):"
            f" chmod go-w {folder}"
        )


def belongs(owner: int, path: Path) -> str:
    """Returns why a path of another user is not used, and what to do."""
    user = os.geteuid()
    if user == 0:
        # What root makes, the service, which runs as that user, could not read.
        name = _name(owner)
        return f"belongs to user {name}: run this as `runuser -u {name} -- tidegate-controller ...`"
    return f"belongs to user {_name(owner)}, not to {_name(user)}, who runs this: chown {_name(user)} {path}"


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
