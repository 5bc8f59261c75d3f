"""Other people's neurons as our cells, and our cells as their layers; each module needs the library it is named after."""
