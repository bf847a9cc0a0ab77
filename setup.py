"""What pyproject.toml cannot say: `alerts/` and `dashboards/` come inside the package."""

from setuptools import find_packages, setup

DATA = {
    "moriio_observed.data.alerts": "alerts",
    "moriio_observed.data.dashboards": "dashboards",
}

setup(
    packages=[*find_packages(include=["moriio_observed*"]), *DATA],
    package_dir=DATA,
    package_data={
        "moriio_observed": ["py.typed"],
        "moriio_observed.data.alerts": [
            "*.yaml",
            "rules/*.yaml",
            "alerts/*.yaml",
            "tests/*.yaml",
            "runbooks/*.md",
            "alertmanager/*",
        ],
        "moriio_observed.data.dashboards": ["json/*.json", "provisioning/*/*.yaml"],
    },
    # A source distribution has more of these folders than a wheel needs.
    include_package_data=False,
)
