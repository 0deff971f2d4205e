"""Old import path, kept for existing projects; `ConfigStruct` is in `elasticdl.config_file`."""

from elasticdl.config_file import ConfigStruct

__all__ = ["ConfigStruct"]
