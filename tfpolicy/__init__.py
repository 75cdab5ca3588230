"""Static-graph TensorFlow policies that train on many devices and are served as SavedModels."""
