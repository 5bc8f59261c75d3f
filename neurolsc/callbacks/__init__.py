"""What joins a training in another library's loop.

- ``lightning``: an initialisation before the first epoch and its radii after each; exponents held at a target; a
  monitor of the training.

Each needs the library that it is named after, and is imported by whoever has it.
"""
