"""What `colcon build` installs: the package, its marker in the ament index, and the node."""

from setuptools import setup

NAME = "howsure_pose"

setup(
    name=NAME,
    version="0.3.0",
    packages=[NAME],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
    ],
    install_requires=["setuptools", "howsure"],
    entry_points={"console_scripts": [f"pose_node = {NAME}.node:main"]},
)
