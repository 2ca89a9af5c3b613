"""How much an attack may find before the audit fails."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AuditThresholds(BaseModel):
    """A site's limits; an attack that goes beyond its limit fails the audit.

    Attributes:
        images: recognisable training images that an attack may bring back.
        membership: the lower end of the 95 % interval of the AUC of membership may be at most this.
        class_share: an attack may not know the shares of all classes of a part within this; 0 lets it know them.
        known_images: share of known images about whose presence and label the attack may be right and sure: beyond the
            half that always saying the same is right about.
        batch_norm: an attack may not know a personal batch-norm number within this relative error; 0 lets it know them.
        replays: answers beyond those that the policy's ``repeats`` allows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    images: int = Field(default=0, ge=0)
    membership: float = Field(default=0.6, ge=0.5, le=1)
    class_share: float = Field(default=0.02, ge=0, le=1)
    known_images: float = Field(default=0.75, ge=0.5, le=1)
    batch_norm: float = Field(default=0.05, ge=0, le=1)
    replays: int = Field(default=0, ge=0)
