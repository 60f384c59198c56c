"""Checks that decide whether runs show what the paper claims."""
