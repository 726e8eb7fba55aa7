"""Elastic capacity of clouds."""
