"""Jobs on a Kubernetes cluster: builds the image and the RayJob, submits and follows them.

    Job + ClusterOptions --rayjob--> manifest --submit--> KubeRay --> pods run `elasticdl train`

Callers: `api.py`.
"""
