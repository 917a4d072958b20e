"""The engines: a folder each, with one `ENGINE` that describes it; and the folders of what several of them share."""
