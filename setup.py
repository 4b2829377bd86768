"""Which packages the wheel holds. Recorded results, released lessons and explorers are data of packages in it.

pyproject.toml says everything else; its `packages.find` cannot give a package a folder of another name.
"""

from setuptools import find_packages, setup

DATA = {"course_lib.recorded": ("benchmarks/results", "*.json"), "autograder.releases": ("notebooks", "[0-9]*/*")}

setup(
    packages=[*find_packages(include=["course_lib*", "autograder*"]), *DATA],
    package_dir={package: folder for package, (folder, _) in DATA.items()},
    package_data={package: [files] for package, (_, files) in DATA.items()} | {"course_lib.widgets": ["js/*.mjs"]},
)
