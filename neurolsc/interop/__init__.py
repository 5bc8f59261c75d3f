"""Our cells as layers of other libraries; each module here needs the library that it is named after."""
