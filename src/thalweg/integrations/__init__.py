"""Thalweg inside other libraries; importing a module imports the library that it supports."""
