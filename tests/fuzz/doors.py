"""Every front door there is."""

from __future__ import annotations

from tests.fuzz import of_doctor, of_files, of_views

DOORS = {**of_doctor.DOORS, **of_views.DOORS, **of_files.DOORS}
