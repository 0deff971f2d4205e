-- Salaries, without Python: train on rows, and predictions become a column.
--
--   mkdir -p demo
--   elasticdl sql --database=duckdb:///demo/shop.db --models=demo/models -f examples/employees.sql
CREATE OR REPLACE TABLE employee AS
SELECT ['clerk', 'engineer', 'manager'][1 + i % 3] AS role,
       i * 37 % 30 AS years,
       i % 4 = 0 AS remote,
       [32000, 52000, 68000][1 + i % 3] + 500 * (i * 37 % 30) + i * 53 % 2000 AS salary
FROM range(600) rows(i);

CREATE OR REPLACE TABLE applicant (name TEXT, role TEXT, years INT, remote BOOLEAN);
INSERT INTO applicant VALUES
    ('Ada', 'engineer', 7, true), ('Bo', 'clerk', NULL, false), ('Cy', 'pilot', 3, false);

SELECT role, years, remote, salary FROM employee
TRAIN regressor.DNN
WITH hidden_units=[64, 32], learning_rate=0.01
INTO salaries;

SELECT * FROM applicant
PREDICT applicant.predicted_salary
USING salaries;

SELECT * FROM applicant;
