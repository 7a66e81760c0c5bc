"""A module beside a script, imported by its tasks on the workers."""

NAME = "beside"
