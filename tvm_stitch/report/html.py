from .data import ModelReport


def html_page(report: ModelReport, title: str, embedded: bool = False) -> str:
    return ""
