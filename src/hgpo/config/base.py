"""The base of all configuration classes: unknown keys are errors, values are checked on assignment."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator


class Settings(BaseModel):
    """A section of the configuration; numbers are finite."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, validate_default=True, allow_inf_nan=False)


class DataSettings(Settings):
    """Where the data of one environment come from.

    source: `generated` (made here from a seed, needs no download), `official` (downloaded and checked against
        known hashes) or `mirror` (a local copy of the official data). `source: {mirror: PATH}` is the same as
        `source: mirror` with `mirror: PATH`.
    mirror: the folder or archive of the local copy, only with `source: mirror`.
    """

    source: Literal["generated", "official", "mirror"] = "generated"
    mirror: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _expand_mirror(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("source"), dict) and set(value["source"]) == {"mirror"}:
            return value | {"source": "mirror", "mirror": value["source"]["mirror"]}
        return value

    @model_validator(mode="after")
    def _mirror_goes_with_source(self) -> DataSettings:
        if self.source == "mirror" and not self.mirror:
            raise ValueError("`source: mirror` needs `mirror: PATH`, the folder or archive of the local copy")
        return self
