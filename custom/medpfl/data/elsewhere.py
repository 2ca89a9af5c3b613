"""Published sets that are not fetched: nobody publishes a checksum of their files, or their terms ask for a person."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    """A set that the user gets.

    Attributes:
        what: modality and task in a few words.
        samples: how many, 0 where that depends on how windows are cut.
        classes: how many.
        licence: of the data.
        address: where they are.
        how: what to do with them.
    """

    what: str
    samples: int
    classes: int
    licence: str
    address: str
    how: str

    def in_words(self, name: str) -> str:
        """Where to get it and what to do then."""
        return (
            f"{name} is not fetched: no checksum of its files is published, or its terms ask for a person. Get it from "
            f"{self.address} ({self.licence}), {self.how}; the card is datasets/{name}.md"
        )


ELSEWHERE = {
    "pamap2": Elsewhere(
        "wearable sensors, physical activities",
        0,
        10,
        "CC BY 4.0",
        "https://archive.ics.uci.edu/dataset/231/pamap2+physical+activity+monitoring",
        "unpack it, and give the folder that holds Protocol, or put it at $MEDPFL_DATA/pamap2",
    ),
    "covid19": Elsewhere(
        "chest X-rays, COVID-19 and pneumonia",
        9208,
        4,
        "CC BY 4.0",
        "https://data.mendeley.com/datasets/9xkhgts2s6",
        "unpack it, and give the folder that holds the four class folders, or put it at $MEDPFL_DATA/covid19",
    ),
    "retina": Elsewhere(
        "fundus photographs of four sites, glaucoma",
        0,
        2,
        "each site's own",
        "its four publishers",
        "put each site's pictures into SITE/glaucoma and SITE/normal of one folder",
    ),
}
"""By the name that messages and cards use."""
