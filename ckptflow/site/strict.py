"""What every table of a site file has in common: unknown keys and odd units are errors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ckptflow.units import parse_bytes, parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class Strict(BaseModel):
    """A table of a site file: unknown keys are errors."""

    # What is refused is not repeated: it may be a secret that does not belong here.
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True
    )
