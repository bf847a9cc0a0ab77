"""The component of annotations: what happened, drawn over every panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_dashboards.components.annotations import AnnotationsItemBase
from grafana_foundation_sdk.builders import dashboard as sdk

from moriio_observed.dashboarding.plugin import specs
from moriio_observed.dashboarding.plugin.pieces import DATASOURCE, target


@dataclass(frozen=True, kw_only=True)
class AnnotationSpec(specs.Spec):
    """What happened, drawn over every panel.

    Attributes:
        name: What it is called.
        query: Its query in the catalogue, whose legend is the annotation's title.
        colour: Its colour.
        tells: The labels that it shows.
    """

    name: str
    query: str
    colour: str
    tells: Sequence[str]


class Annotation(AnnotationsItemBase):
    """What happened, drawn over every panel."""

    def gen_json_from_data(self, data: Any, _context: Any) -> sdk.AnnotationQuery:
        """Return the annotation."""
        spec = AnnotationSpec.parse(data, "annotation")
        query = self.registry.context.query(spec.query)
        return (
            sdk.AnnotationQuery()
            .name(spec.name)
            .datasource(DATASOURCE)
            .enable(enable=True)
            .icon_color(spec.colour)
            .target(target(query, "Anno").interval("15s"))
            .title_format(query.legend)
            .text_format(", ".join(f"{label} {{{{{label}}}}}" for label in spec.tells))
        )
