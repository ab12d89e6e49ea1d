"""Figures of the book, in one style: `plots`, and `sheets` of images in few bytes.

To add a figure: one function in `plots`.
"""
