"""Profiles and live records, shown to people: text, pages, and the screen of `stoker top`."""
