r"""A report on each example: which digits are mistaken for which, and the worst ones.

    elasticdl data sample digits --output=demo/data
    elasticdl train --model_def=mnist --data=demo/data/train --num_epochs=2 \
        --output=demo/report_model
    elasticdl evaluate --trained_model=demo/report_model --data=demo/data/test \
        --report=demo/report
    python examples/reports.py

`demo/report/report.html` shows the same in a browser, with pictures.
"""

from elasticdl.evaluation.report_tables import Report

if __name__ == "__main__":
    report = Report("demo/report/report.parquet")
    for row in report.classes():
        print(f"{row.name}: precision {row.precision:.2f}, recall {row.recall:.2f}")
    for row in report.rows(report.worst("loss", 3)):
        print(row["data_id"], "is", row["label"], "and was taken for", row["prediction"])
