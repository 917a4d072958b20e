"""verl: the keys of its versions, its launch scripts written from plans, and its runs read into flows."""
