"""Pictures: as data (`model`), made of flows, plans and runs (`build`), and in a format (`write`)."""
