"""What every section of the settings is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of every section: unknown keys are errors, attribute docstrings are the documentation."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, validate_default=True, defer_build=True)
