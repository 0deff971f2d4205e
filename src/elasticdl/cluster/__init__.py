"""Running a job on a Kubernetes cluster: its image, its RayJob, submitting and following it.

    Job + ClusterOptions --rayjob--> manifest --submit--> KubeRay --> pods run `elasticdl train`

Callers: `api.py`.
"""
