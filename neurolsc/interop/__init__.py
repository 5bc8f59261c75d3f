"""Other people's neurons as our cells, and our cells as their layers."""
