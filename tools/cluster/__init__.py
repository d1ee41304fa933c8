"""The parts of tools/devcluster, tools/images and tools/simnode. Standard library only."""
