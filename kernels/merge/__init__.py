"""The second stage: a row's summaries from all programs become one."""
