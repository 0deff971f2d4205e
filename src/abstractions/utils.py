"""Import path of existing `abstractions` projects; see `elasticdl.config_file`."""

from elasticdl.config_file import ConfigStruct

__all__ = ["ConfigStruct"]
