"""Tests of the whole product; a package, so that its browser and servers end with it."""
