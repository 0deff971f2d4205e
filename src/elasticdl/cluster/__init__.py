"""Jobs on a Kubernetes cluster: builds a job's image and its RayJob, submits and follows the job.

    Job + ClusterOptions --rayjob--> manifest --submit--> KubeRay --> pods run `elasticdl train`

Callers: `api.py`.
"""
