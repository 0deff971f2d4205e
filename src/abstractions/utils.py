"""An old module name; see `elasticdl.config`."""

from elasticdl.config import ConfigStruct

__all__ = ["ConfigStruct"]
