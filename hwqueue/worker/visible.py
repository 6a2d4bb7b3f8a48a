"""What `CUDA_VISIBLE_DEVICES` and its kin (`HIP_`, `ROCR_VISIBLE_DEVICES`) list."""

from collections.abc import Collection

_NAMED = ("GPU-", "MIG-")


def listed_devices(value: str | None, count: int, names: Collection[str]) -> list[str] | None:
    """The entries of a list up to the first that is wrong; the libraries stop there, too.

    With three GPUs `"0,-1,1"` and `"0,7,1"` list `"0"` alone, and so `-1`, `NoDevFiles` or
    nothing hide all.

    Args:
        value: Numbers, or (the beginnings of) names such as `GPU-8f5b6c1e` or `MIG-e07a`. None,
            where there is no such variable, lists all, and so does the answer None.
        count: How many GPUs there are; their numbers are 0 to `count - 1`.
        names: The names that devices have.
    """
    if value is None:
        return None
    found: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.isdecimal() and int(entry) < count:
            found.append(str(int(entry)))
        elif entry.startswith(_NAMED) and any(name.startswith(entry) for name in names):
            found.append(entry)
        else:
            break
    return found


def is_listed(entries: Collection[str] | None, index: int, names: Collection[str]) -> bool:
    """Whether `listed_devices` has a GPU of this number, or a device with one of these names."""
    return entries is None or any(
        entry == str(index) or (entry.startswith(_NAMED) and name.startswith(entry))
        for entry in entries
        for name in names
    )
